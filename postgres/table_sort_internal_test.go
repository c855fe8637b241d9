package postgres

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSortByKeyKeepsTheOrderOfKeysAndOfEqualOnes(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, field := range map[string]func(i int) []byte{
		"random uuids": func(int) []byte {
			return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, rnd.Uint64()), rnd.Uint64())
		},
		"numbers in a row": func(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(1_000_000+i*7%3000)) },
		"texts":            func(int) []byte { return bytes.Repeat([]byte{"abc"[rnd.IntN(3)]}, rnd.IntN(12)) },
		"one key":          func(int) []byte { return []byte("abc") },
		"two keys":         func(i int) []byte { return []byte{byte(i % 2)} },
	} {
		rows := make([]*tableRow, 3000)
		for i := range rows {
			rows[i] = new(tableRow)
			if i%100 > 0 { // else it has none
				v := field(i)
				rows[i].key = append(binary.BigEndian.AppendUint32(nil, uint32(len(v))), v...)
			}
			rows[i].mark()
		}
		want := slices.Clone(rows)
		slices.SortStableFunc(want, func(a, b *tableRow) int { return bytes.Compare(a.key, b.key) })
		sortByKey(rows)
		if !slices.Equal(rows, want) {
			t.Errorf("%s: another order", name)
		}
	}
}
