package inbox

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/semelhq/semel"
)

// note is what an ack is signed with. Together with the row and the log it tells
// apart what nobody else can: a database that went back, a foreign consumer in
// the group, another database, another incarnation of the topic.
type note struct {
	database string
	consumer string
	topicID  semel.TopicID
	first    int64 // the first position ever claimed
}

const notePrefix = "semel1 "

func (n note) String() string {
	return fmt.Sprintf("%sdb=%s c=%s t=%x f=%d", notePrefix, url.QueryEscape(n.database), url.QueryEscape(n.consumer), n.topicID[:], n.first)
}

// parseNote answers false for what semel didn't write.
func parseNote(s string) (note, bool) {
	rest, ok := strings.CutPrefix(s, notePrefix)
	if !ok {
		return note{}, false
	}
	var n note
	seen := 0
	for _, f := range strings.Fields(rest) {
		k, v, _ := strings.Cut(f, "=")
		var err error
		switch k {
		case "db":
			n.database, err = url.QueryUnescape(v)
		case "c":
			n.consumer, err = url.QueryUnescape(v)
		case "t":
			var b []byte
			if b, err = hex.DecodeString(v); err == nil && len(b) == len(n.topicID) {
				copy(n.topicID[:], b)
			} else {
				return note{}, false
			}
		case "f":
			n.first, err = strconv.ParseInt(v, 10, 64)
		default:
			continue // a later version may say more
		}
		if err != nil {
			return note{}, false
		}
		seen++
	}
	return n, seen == 4
}
