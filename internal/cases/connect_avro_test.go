//go:build connect && registry

package cases_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The way that most changes take: Debezium's connector, an Avro converter that is somebody else's, a registry. Into a table
// that is there, with a column of each type, and into one that is made, and altered, by the schemas.
func TestARealConnectorsAvroIsMirrored(t *testing.T) {
	d := newSourced(t)
	reg := newRealRegistry(t)
	d.s.more = fmt.Sprintf("schema_registry: {url: %q}\n", reg.url())
	a := "a" + strings.ToLower(d.s.topic[len(d.s.topic)-8:])
	tables := zooTypes + "CREATE SCHEMA shop; SET search_path = shop, public; " + zooTable()
	execOn(t, d.source, tables+"CREATE TABLE parts (region text, id int, price numeric(10,2), at timestamptz, PRIMARY KEY (region, id)); INSERT INTO parts VALUES ('eu', 1, 1.50, '2026-03-29 01:00:00Z'), ('eu', 2, NULL, NULL)")
	d.s.exec(tables)
	d.fill(0)
	config := map[string]string{}
	for _, side := range []string{"key", "value"} {
		config[side+".converter"] = "io.apicurio.registry.utils.converter.AvroConverter"
		config[side+".converter.apicurio.registry.url"] = "http://" + reg.address + "/apis/registry/v2"
		config[side+".converter.apicurio.registry.auto-register"] = "true"
		config[side+".converter.apicurio.registry.find-latest"] = "true"
		config[side+".converter.apicurio.registry.headers.enabled"] = "false"
		config[side+".converter.apicurio.registry.as-confluent"] = "true" // four bytes of ID, as Confluent's
		config[side+".converter.apicurio.registry.use-id"] = "contentId"
	}
	d.connector(a, config)
	d.s.spawn(nil, nil, d.s.text(
		d.s.route("name: zoo", "consumer: "+a+"-zoo", fmt.Sprintf("from: {topics_matching: '%s.shop.zoo'}", a), "format: avro", "envelope: debezium", "id: {position: true}", "to: {table: shop.zoo, write: mirror, times: {zone: UTC}}"),
		d.s.route("name: parts", "consumer: "+a+"-parts", fmt.Sprintf("from: {topics_matching: '%s.shop.(parts)'}", a), "format: avro", "envelope: debezium", "id: {position: true}",
			"to: {table: 'public.{1}', write: mirror, create: true, evolve: add-columns}"),
	))
	d.fill(changes)
	execOn(t, d.source, `DELETE FROM shop.zoo WHERE id = 0; UPDATE shop.parts SET price = 9.99 WHERE id = 1; UPDATE shop.parts SET region = 'us' WHERE id = 2;
		ALTER TABLE shop.parts ADD note text; INSERT INTO shop.parts VALUES ('eu', 3, 0, NULL, 'x')`)

	var differ []string
	defer func() {
		if t.Failed() {
			t.Logf("differences:\n%s", strings.Join(differ, "\n"))
			t.Log(d.s.ask(`SELECT string_agg(concat_ws(' ', topic, "offset", class, sqlstate, error), E'\n' ORDER BY topic, "offset") FROM semel.dead_letter`))
		}
	}()
	eventually(t, "the mirror has what the source has", func() bool {
		differ = nil
		for _, k := range zoo {
			is, was := column(t, d.s.db, "id", k.name(), "shop.zoo"), column(t, d.source, "id", k.name(), "shop.zoo")
			for i, other := range zoo {
				if other != k {
					continue
				}
				for _, id := range []string{fmt.Sprint(i), fmt.Sprint(changes + i)} {
					source, there := was[id]
					may := []string{dead}
					if there {
						may = wants(k.with, source)
					}
					got, found := is[id]
					if !found {
						got = dead
					}
					if !slices.Contains(may, got) {
						differ = append(differ, fmt.Sprintf("%s: %s %s is %s, want %s", id, k.column, k.sql, got, strings.Join(may, " or ")))
					}
				}
			}
		}
		return len(differ) == 0
	})
	const parts = "SELECT string_agg(concat_ws('|', region, id, price, at AT TIME ZONE 'UTC', note), ' ' ORDER BY id) FROM parts"
	eventually(t, "the table that was made has all rows", func() bool { return d.s.count("parts WHERE id = 3") == 1 })
	d.s.want(parts, "eu|1|9.99|2026-03-29 01:00:00 us|2 eu|3|0.00|x")
	if got, want := d.s.columns("parts"), "region text, id integer, price numeric(10,2), at timestamp with time zone, note text"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
