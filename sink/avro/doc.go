// Package avro rewrites Avro's binary form into exact JSON text.
//
//	s, err := avro.Parse(text)
//	line, err := s.AppendJSON(nil, data)
//
// A value is written as what it is, not as Avro's own JSON form wraps it: of a
// union the branch's value, of a decimal the number digit by digit, of times ISO
// 8601, of bytes \x and hexadecimal digits. A record's fields have the names of
// the schema that the writer had, which is the only one that is needed.
package avro
