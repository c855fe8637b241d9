// Package sink turns messages into rows: it reads a message's value, key and
// headers, picks what a mapping names, and hands it on digit by digit.
//
//	id, _ := sink.ParsePath("value.order.id")
//	raw, _ := sink.ParsePath("value")
//	mapping, err := sink.NewMapping(sink.MappingConfig{
//		Columns: []sink.Column{{Name: "id", From: id}, {Name: "raw", From: raw}},
//	})
//	rows := mapping.NewRows(len(messages))
//	for i := range messages {
//		err := mapping.Decode(&messages[i], &rows[i]) // *DecodeError: this message alone is bad
//	}
//
// A value keeps the form in which it was sent: a number is its literal, never a
// float; a document is its bytes; a field that is absent differs from one that is
// null. What a column's type makes of it is decided by whoever knows the type.
// There is one way to be exact and many to be nearly so, hence nothing is
// converted here that need not be.
//
// A message that gives two answers to one question (a name twice at the top
// level, or twice on the way to a mapped field) is refused. Inside a document
// that is stored whole, names may repeat: the database has a rule for it.
//
// This package knows no driver and no broker client; it starts no goroutine and
// does no I/O.
package sink
