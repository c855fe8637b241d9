// Package registry reads messages whose schema is in a schema registry, in the
// wire format of Confluent's serializers: a zero, the schema's ID in four bytes,
// for Protobuf the place of the message in its file, then the data.
//
//	reg, err := registry.New(registry.Config{URLs: []string{"http://localhost:8081"}})
//	defer reg.Close()
//	line, err := reg.Decoder(registry.Avro).AppendJSON(nil, message.Value)
//
// Each message is read by the schema that its writer had. A schema is fetched when
// the first message names it, with what it refers to, and kept for good: the
// schema of an ID never changes. [Registry.Reader] reads Avro as another schema has
// it, and checks JSON by its schema. A registry that can't be used, also for want of
// credentials, is a semel.OutageError; an ID that it doesn't know, and bytes that
// are not what the schema says, are errors about the message.
package registry
