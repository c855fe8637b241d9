package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/sqlname"
	"github.com/semelhq/semel/sink"
)

// ddlSimple are the types of the kinds that need no more said. What is a
// document, or any value, is jsonb.
var ddlSimple = map[sink.TypeKind]string{
	sink.TypeBool: "boolean", sink.TypeInt16: "smallint", sink.TypeInt32: "integer", sink.TypeInt64: "bigint",
	sink.TypeFloat32: "real", sink.TypeFloat64: "double precision", sink.TypeDecimal: "numeric", sink.TypeText: "text", sink.TypeBytes: "bytea", sink.TypeUUID: "uuid",
	sink.TypeBits: "bit varying", sink.TypeDate: "date", sink.TypeClock: "time", sink.TypeZonedClock: "time with time zone",
	sink.TypeLocal: "timestamp", sink.TypeInstant: "timestamptz", sink.TypeInterval: "interval",
}

// Bounds of what modifiers say.
const (
	ddlDigits = 1000
	ddlBits   = 10485760
)

// ddlType is the type of a column that holds each value of t, digit by digit.
func ddlType(t *sink.Type) string {
	switch {
	case t.Kind == sink.TypeDecimal && t.Precision > 0 && t.Precision <= ddlDigits && t.Scale >= 0 && t.Scale <= t.Precision:
		return fmt.Sprintf("numeric(%d,%d)", t.Precision, t.Scale)
	case t.Kind == sink.TypeBits && t.Precision > 0 && t.Precision <= ddlBits:
		return fmt.Sprintf("bit varying(%d)", t.Precision)
	case t.Kind == sink.TypeArray && t.Elem != nil && ddlElement(t.Elem):
		return ddlType(t.Elem) + "[]"
	}
	return cmp.Or(ddlSimple[t.Kind], "jsonb")
}

// ddlElement says whether arrays of it are arrays, and not documents.
func ddlElement(t *sink.Type) bool {
	switch t.Kind {
	case sink.TypeBits, sink.TypeZonedClock, sink.TypeInterval:
		return false
	}
	return ddlSimple[t.Kind] != ""
}

var ddlSystem = []string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}

// ddlColumn is a column that a schema asks for.
type ddlColumn struct {
	name string
	typ  string
	of   *sink.Type // nil: no message fills it, or
	why  error      // its type isn't known
}

func (c ddlColumn) sql() string { return pgx.Identifier{c.name}.Sanitize() + " " + c.typ }

// ddlTable is what a route and the schemas of its topics ask for.
type ddlTable struct {
	columns []ddlColumn
	key     []string
	keyless error // there is no key to make, and why
}

// ddlWanted collects what a route asks for, and its mistakes.
type ddlWanted struct {
	ddlTable
	cfg  TableConfig
	errs []error
}

func (w *ddlWanted) mistake(column, hint, why string, args ...any) error {
	return &TableError{Table: w.cfg.Table, Column: column, Why: fmt.Sprintf(why, args...), Hint: hint}
}

func (w *ddlWanted) wrong(column, hint, why string, args ...any) {
	w.errs = append(w.errs, w.mistake(column, hint, why, args...))
}

const ddlHint = "write the CREATE TABLE yourself"

// wanted says what columns a route asks for by these schemas, all of them. A column
// of a type that isn't known is a mistake only where it has to be made. Mistakes are
// *TableError, joined.
func wanted(cfg TableConfig, all []sink.Types) (ddlTable, error) {
	w := &ddlWanted{cfg: cfg}
	for _, types := range all {
		if cfg.Columns == nil {
			w.fields(types.Value)
		} else {
			w.mapped(types)
		}
	}
	if cfg.Deleted != "" {
		w.add(ddlColumn{name: cfg.Deleted, typ: ddlSimple[sink.TypeInstant]})
	}
	w.keyless = w.pickKey(all)
	return w.ddlTable, errors.Join(w.errs...)
}

// fields are the columns of a route that maps none: all fields by their names.
func (w *ddlWanted) fields(value *sink.Type) {
	if value == nil || value.Kind != sink.TypeRecord {
		w.wrong("", "name what each column takes: columns: {…}", "the schema's value is %s, and has no fields to make columns of", value)
		return
	}
	if len(value.Fields) == 0 {
		w.wrong("", "", "the schema has no fields to make columns of")
	}
	for _, f := range value.Fields {
		w.add(ddlColumn{name: f.Name, typ: ddlType(f.Type), of: f.Type})
	}
}

// mapped are the columns of a mapping.
func (w *ddlWanted) mapped(types sink.Types) {
	names := w.cfg.Fit.Order
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(w.cfg.Columns))
	}
	for _, name := range names {
		path, err := sink.ParseExpr(w.cfg.Columns[name])
		var t *sink.Type
		if err == nil {
			t, err = types.Of(path, w.cfg.KeyFormat)
		}
		switch {
		case err != nil:
			hint := ddlHint
			if path.MayBeNumber() {
				hint += ": what is computed went through a double, and goes into double precision; or select the field without computing"
			}
			w.add(ddlColumn{name: name, why: w.mistake(name, hint, "its type isn't known: %v", err)})
		case w.cfg.Epoch[name] != "":
			w.add(ddlColumn{name: name, typ: ddlSimple[sink.TypeInstant], of: t})
		default:
			w.add(ddlColumn{name: name, typ: ddlType(t), of: t})
		}
	}
}

func (w *ddlWanted) add(c ddlColumn) {
	if c.name == "" || len(c.name) > sqlname.MaxBytes || strings.ContainsRune(c.name, 0) {
		w.wrong(c.name, "map the field to a column of another name", "a column's name has 1 to %d bytes", sqlname.MaxBytes)
		return
	}
	if slices.Contains(ddlSystem, c.name) {
		w.wrong(c.name, "map the field to a column of another name", "each table has a column of that name for the server's own use")
		return
	}
	i := slices.IndexFunc(w.columns, func(x ddlColumn) bool { return x.name == c.name })
	switch {
	case i < 0:
		w.columns = append(w.columns, c)
	case c.why != nil:
		w.columns[i] = c
	case w.columns[i].why != nil:
	case w.columns[i].typ != c.typ:
		w.wrong(c.name, ddlHint, "%s by one schema, %s by another", w.columns[i].typ, c.typ)
	}
}

// pickKey takes the route's key, else the fields of the messages' key; its error
// says why there is none.
func (w *ddlWanted) pickKey(all []sink.Types) error {
	if w.cfg.Write == WriteAppend {
		return nil
	}
	w.key = w.cfg.PrimaryKey
	if w.key == nil && w.cfg.Write.keeps() {
		for i, types := range all {
			var names []string
			if types.Key != nil && types.Key.Kind == sink.TypeRecord {
				for _, f := range types.Key.Fields {
					names = append(names, f.Name)
				}
			}
			if i > 0 && !slices.Equal(w.key, names) {
				return w.mistake("", "name one with primary_key", "the keys of its topics have other fields: (%s), (%s)", strings.Join(w.key, ", "), strings.Join(names, ", "))
			}
			w.key = names
		}
	}
	if len(w.key) == 0 {
		why := "the messages' key has no schema with fields"
		if w.cfg.Write == WriteInsert { // whose messages of one key are no states of a row
			why = "what a row is told apart by is not for a schema to say"
		}
		return w.mistake("", "name one with primary_key: [id]", "write: %s needs a primary key, and %s", w.cfg.Write, why)
	}
	for _, k := range w.key {
		if !slices.ContainsFunc(w.columns, func(c ddlColumn) bool { return c.name == k }) {
			return w.mistake(k, "map it, or name other columns with primary_key", "it is part of the key, and no column of that name is made")
		}
	}
	return nil
}

// without are the columns that a table lacks; all, if it isn't there. That it can't
// be known what they are is a mistake.
func (t ddlTable) without(info *introspectTable) (lacks ddlTable, err error) {
	var errs []error
	for _, c := range t.columns {
		if info != nil && info.column(c.name) != nil {
			continue
		}
		if c.why != nil {
			errs = append(errs, c.why)
		}
		lacks.columns = append(lacks.columns, c)
	}
	if info == nil {
		lacks.key = t.key
		errs = append(errs, t.keyless)
	}
	return lacks, errors.Join(errs...)
}

// create is the statement for a table that isn't there. Columns allow NULL but for
// the key: a later schema may leave any field out, and a deletion brings none.
func (t ddlTable) create(name TableName) string {
	var lines []string
	for _, c := range t.columns {
		line := "    " + c.sql()
		if slices.Contains(t.key, c.name) {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	if len(t.key) > 0 {
		var names []string
		for _, k := range t.key {
			names = append(names, pgx.Identifier{k}.Sanitize())
		}
		lines = append(lines, "    PRIMARY KEY ("+strings.Join(names, ", ")+")")
	}
	return "CREATE TABLE IF NOT EXISTS " + name.sql() + " (\n" + strings.Join(lines, ",\n") + "\n)"
}

// add is the statement that adds the columns; "" if there are none.
func (t ddlTable) add(name TableName) string {
	if len(t.columns) == 0 {
		return ""
	}
	var lines []string
	for _, c := range t.columns {
		lines = append(lines, "    ADD COLUMN IF NOT EXISTS "+c.sql())
	}
	return "ALTER TABLE " + name.sql() + "\n" + strings.Join(lines, ",\n")
}
