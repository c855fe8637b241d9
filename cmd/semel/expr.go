package main

import (
	"errors"
	"fmt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

// expr gives the text that an expression selects of a message.
type expr func(m *semel.Message) ([]byte, error)

// compile reads an expression; none gives none.
func compile(flag, text string) (expr, error) {
	if text == "" {
		return nil, nil
	}
	path, err := sink.ParsePath(text)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", flag, err), "a selection like value.order.id")
	}
	mapping, err := sink.NewMapping(sink.MappingConfig{Columns: []sink.Column{{Name: "it", From: path}}})
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", flag, err), "")
	}
	var row sink.Row
	return func(m *semel.Message) ([]byte, error) {
		if err := mapping.Decode(m, &row); err != nil {
			return nil, err
		}
		v := row.Values[0]
		if v.IsNull() {
			return nil, fmt.Errorf("there is no %s", path)
		}
		if text := v.Text(nil); len(text) > 0 {
			return append([]byte(nil), text...), nil
		}
		return nil, errors.New(path.String() + " is empty")
	}, nil
}
