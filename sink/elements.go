package sink

import "iter"

// Elements are those of an array, in order; nothing for other kinds.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind != Array {
			return
		}
		s := scanner{data: v.Raw} // what it reads was checked before
		for i := s.space(1); v.Raw[i] != ']'; {
			s.flags = 0
			end := s.value(i, nil)
			if end < 0 || !yield(Value{Kind: kindOf(v.Raw[i]), flags: s.flags, Raw: v.Raw[i:end:end]}) {
				return
			}
			if i = s.space(end); v.Raw[i] == ',' {
				i = s.space(i + 1)
			}
		}
	}
}
