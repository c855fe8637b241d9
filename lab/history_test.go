package lab_test

import (
	"fmt"
	"testing"

	"github.com/semelhq/semel/lab"
)

func TestJudgeSeesWhatWentWrong(t *testing.T) {
	var h lab.History
	for _, id := range []string{"a", "b", "c"} {
		h.Sent(id, 2)
		h.Sent(id, 2) // a repeat is no new message
	}
	for _, c := range []struct {
		effects []lab.Effect
		sum     int64
		want    string
	}{
		{[]lab.Effect{{"a", 2}, {"b", 2}, {"c", 2}}, 6, "3 messages took effect once"},
		{[]lab.Effect{{"a", 2}, {"c", 2}}, 4, "of 3 messages 1 lost (b), 0 twice, 0 strange; the sum is 4 instead of 6"},
		{[]lab.Effect{{"a", 2}, {"b", 2}, {"c", 2}, {"a", 2}, {"a", 2}}, 10, "of 3 messages 0 lost, 1 twice (a), 0 strange; the sum is 10 instead of 6"},
		{[]lab.Effect{{"a", 2}, {"b", 3}, {"c", 2}, {"x", 1}}, 8, "of 3 messages 0 lost, 0 twice, 2 strange (b, x); the sum is 8 instead of 6"},
		{[]lab.Effect{{"a", 2}, {"b", 2}, {"c", 2}}, 8, "of 3 messages 0 lost, 0 twice, 0 strange; the sum is 8 instead of 6"},
	} {
		if got := fmt.Sprint(h.Judge(c.effects, c.sum)); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}
