// Package protobuf rewrites Protobuf's binary form into exact JSON text.
//
//	files, err := protobuf.Compile("order.proto", map[string]string{"order.proto": text})
//	m, err := files.Message("shop.Order")
//	line, err := m.AppendJSON(nil, data)
//
// Fields have the names of the .proto file. Whole numbers of any size are
// numbers, enums names, bytes \x and hexadecimal digits, Timestamp ISO 8601 with
// Z, Duration ISO 8601, wrappers what they wrap, Struct and Value the JSON that
// they stand for. A field that knows whether it was set is left out if it
// wasn't; one that doesn't know has its zero, a list or a map is empty.
//
// This is not Protobuf's own JSON form, which writes large numbers as strings and
// renames fields.
package protobuf
