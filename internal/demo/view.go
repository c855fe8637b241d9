package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/semelhq/semel/inbox"
)

// view shows what happens in one of three ways: a JSON object a line, a line a second
// and for each event, or a picture that is drawn over.
type view struct {
	cfg   *Config
	out   io.Writer
	paint paint
	drawn int    // lines of the picture that stand on the terminal
	told  int    // whole seconds that lines were written for
	kills []Note // the last ones, with the time that each took to come back
}

func newView(cfg *Config) *view {
	return &view{cfg: cfg, out: cfg.Out, paint: paint(cfg.Colour), told: -1}
}

// object writes one line of JSON.
func (v *view) object(event string, more any) {
	b, err := json.Marshal(more)
	if err != nil {
		panic(err)
	}
	line := fmt.Sprintf(`{"event":%q`, event)
	if len(b) > 2 {
		line += "," + string(b[1:len(b)-1])
	}
	fmt.Fprintln(v.out, line+"}")
}

// starting is said at once, before anything that takes time.
func (v *view) starting() {
	if v.cfg.JSON {
		v.object("starting", struct {
			Seed    uint64  `json:"seed"`
			For     float64 `json:"for_seconds"`
			Most    int     `json:"most_messages"`
			Rate    int     `json:"rate"`
			Repeats float64 `json:"repeats"`
			Kills   bool    `json:"kills"`
		}{v.cfg.Seed, v.cfg.For.Seconds(), v.cfg.Messages, v.cfg.Rate, v.cfg.Repeats, v.cfg.Kills})
		return
	}
	fmt.Fprintf(v.out, "%s  seed %d. Starting an embedded Kafka broker and PostgreSQL ...\n", v.paint.bold("semel demo"), v.cfg.Seed)
}

func (v *view) started() {
	if v.cfg.JSON {
		v.object("started", struct{}{})
		return
	}
	kills := "each is killed with SIGKILL every few seconds"
	if !v.cfg.Kills {
		kills = "nobody is killed"
	}
	repeats := "none is sent twice"
	if v.cfg.Repeats > 0 {
		repeats = fmt.Sprintf("the producer sends %.3g%% of them twice", 100*v.cfg.Repeats)
	}
	fmt.Fprintf(v.out, "Payments are added to %d balances; %s.\nThree consumers of one topic; %s:\n", accounts, repeats, kills)
	for _, k := range kinds {
		fmt.Fprintf(v.out, "  %s %s\n", v.paint.bold(fmt.Sprintf("%-11s", k.Title())), k.loop())
	}
	fmt.Fprintln(v.out)
}

// loop says how a kind works.
func (k Kind) loop() string {
	switch k {
	case Semel:
		return "effect and memory in one transaction, then the ack"
	case AcksFirst:
		return "the ack, then the effect"
	}
	return "the effect, then the ack"
}

// where says in words at which step a kill has found a consumer of a kind.
func (k Kind) where(s Step) string {
	switch {
	case s == Anytime:
		return "at any moment"
	case s == Polled:
		return "with messages in hand"
	case s == Begun:
		return "inside the transaction, before the inbox"
	case s == Admitted:
		return "after the inbox, before the effect"
	case s == Applied && k == AcksFirst:
		return "after the ack, before COMMIT"
	case s == Applied:
		return "after the effect, before COMMIT"
	case s == Acked && k == AcksFirst:
		return "after the ack, before the effect"
	case s == Committed && k != AcksFirst:
		return "after COMMIT, before the ack"
	}
	return "after COMMIT and ack"
}

// note tells of a kill, or of a process that is back.
func (v *view) note(at time.Duration, n Note) {
	if v.cfg.JSON {
		if n.Back > 0 {
			v.object("back", struct {
				Seconds  float64 `json:"seconds"`
				Consumer Kind    `json:"consumer"`
				After    float64 `json:"after_seconds"`
			}{at.Seconds(), n.Kind, n.Back.Seconds()})
			return
		}
		v.object("kill", struct {
			Seconds  float64 `json:"seconds"`
			Consumer Kind    `json:"consumer"`
			Step     Step    `json:"step"`
		}{at.Seconds(), n.Kind, n.Step})
		return
	}
	n.at = at
	switch {
	case v.cfg.Terminal && n.Back > 0:
		for i := len(v.kills) - 1; i >= 0; i-- {
			if v.kills[i].Kind == n.Kind {
				v.kills[i].Back = n.Back
				return
			}
		}
	case v.cfg.Terminal:
		v.kills = append(v.kills, n)
		v.kills = v.kills[max(0, len(v.kills)-mostKills):]
	case n.Back > 0:
		fmt.Fprintf(v.out, "%s  %-11s commits again, %s after the kill\n", clock(at), n.Kind.Title(), seconds(n.Back.Seconds()))
	default:
		fmt.Fprintln(v.out, v.kill(n))
	}
}

// mostKills is how many of the last kills the picture shows.
const mostKills = 6

// kill is a line about one.
func (v *view) kill(n Note) string {
	line := fmt.Sprintf("%s  %-10s  %s %s", clock(n.at), n.Kind.Title(), v.paint.red("SIGKILL"), n.Kind.where(n.Step))
	if n.Back > 0 {
		line += v.paint.dim(fmt.Sprintf("; back in %s", seconds(n.Back.Seconds())))
	}
	return line
}

func clock(d time.Duration) string {
	return fmt.Sprintf("%02d:%04.1f", int(d.Minutes()), (d % time.Minute).Seconds())
}

// progress shows how it stands. ending says that the stream is over.
func (v *view) progress(p Progress, ending bool) {
	if v.cfg.Terminal && !v.cfg.JSON {
		v.draw(v.picture(p, ending))
		return
	}
	if int(p.Seconds) == v.told {
		return
	}
	v.told = int(p.Seconds)
	if v.cfg.JSON {
		v.object("progress", p)
		return
	}
	line := fmt.Sprintf("%s  came in %s + %s repeats", clock(time.Duration(p.Seconds*float64(time.Second))), comma(p.Messages), comma(p.Repeats))
	for _, c := range p.Consumers {
		line += fmt.Sprintf(" | %s: once %s, lost %s, twice %s", c.Kind.Title(), comma(c.Once), comma(c.Lost), comma(c.Repeated+c.Redone))
		if c.Kind == Semel {
			line += fmt.Sprintf(", refused %s + %s", comma(c.Duplicate), comma(c.Redelivered))
		}
	}
	fmt.Fprintln(v.out, line)
}

// picture is the live view, for a terminal.
func (v *view) picture(p Progress, ending bool) []string {
	columns, rows := v.cfg.Size()
	t := v.paint
	done := 0.0
	of := ""
	if v.cfg.For > 0 {
		done, of = p.Seconds/v.cfg.For.Seconds(), " of "+v.cfg.For.String()
	}
	if v.cfg.Messages > 0 {
		done = max(done, float64(p.Messages)/float64(v.cfg.Messages))
	}
	title := fmt.Sprintf("%s%s  ", clock(time.Duration(p.Seconds*float64(time.Second))), of)
	if ending {
		done, title = 1, title+"the stream has ended, the kills too  "
	}
	lines := []string{
		t.bold(title) + t.dim(bar(done, min(60, columns)-utf8.RuneCountInString(title))),
		fmt.Sprintf("came in  %s messages, %s repeats by the producer", t.bold(comma(p.Messages)), t.bold(comma(p.Repeats))),
		"",
	}
	lines = append(lines, v.table(p.Consumers, p.Messages, columns, true)...)
	semel := p.Consumers[0]
	lines = append(lines, "",
		"semel refused "+t.cyan(fmt.Sprintf("%9s", comma(semel.Duplicate)))+"  repeated by the producer"+t.dim("   inbox: the ID is known"),
		"              "+t.cyan(fmt.Sprintf("%9s", comma(semel.Redelivered)))+"  delivered again by Kafka"+t.dim("   watermark: already settled"),
		"")
	most := max(rows-1, 1)
	for _, n := range v.kills[max(0, len(v.kills)-max(0, most-len(lines))):] {
		lines = append(lines, v.kill(n))
	}
	lines = lines[:min(len(lines), most)]
	for i := range lines {
		lines[i] = cut(lines[i], columns-1)
	}
	return lines
}

// draw puts the picture over the one before. The cursor stays below it, nothing is
// hidden or switched: a program that is killed leaves the terminal as it should be.
func (v *view) draw(lines []string) {
	var b strings.Builder
	b.WriteString("\x1b[?2026h") // at once, where the terminal can
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	for _, l := range lines {
		b.WriteString("\r" + l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J\x1b[?2026l")
	v.drawn = len(lines)
	io.WriteString(v.out, b.String())
}

// leave lets what is written next begin on a line of its own: a terminal may have
// put ^C there.
func (v *view) leave() {
	if v.drawn > 0 {
		fmt.Fprintln(v.out)
	}
}

// table has a column a consumer, and figures that matter a row each.
func (v *view) table(cs []ConsumerProgress, messages int64, columns int, live bool) []string {
	t := v.paint
	g := gridFor(columns)
	for _, c := range cs {
		g.head = append(g.head, t.bold(c.Kind.Title()))
	}
	bad := func(n int64) string {
		if n == 0 {
			return t.green("0")
		}
		return t.red(comma(n))
	}
	row := func(label string, cell func(c ConsumerProgress) string) {
		cells := make([]string, len(cs))
		for i, c := range cs {
			cells[i] = cell(c)
		}
		g.rows = append(g.rows, append([]string{label}, cells...))
	}
	row("took effect once", func(c ConsumerProgress) string { return comma(c.Once) })
	row("", func(c ConsumerProgress) string {
		part := 1.0
		if messages > 0 {
			part = min(1, float64(c.Once+c.Behind)/float64(messages))
		}
		if part < 1 && c.Lost+c.Redone+c.Repeated > 0 {
			return t.red(bar(part, g.width-2))
		}
		return t.green(bar(part, g.width-2))
	})
	row("lost", func(c ConsumerProgress) string { return bad(c.Lost) })
	row("did twice", func(c ConsumerProgress) string { return bad(c.Redone + c.Repeated) })
	row(t.dim("  sent twice, done twice"), func(c ConsumerProgress) string { return t.dim(comma(c.Repeated)) })
	row(t.dim("  done again after a kill"), func(c ConsumerProgress) string { return t.dim(comma(c.Redone)) })
	if live {
		row("still to come", func(c ConsumerProgress) string { return comma(c.Behind) })
	}
	row("kills", func(c ConsumerProgress) string { return comma(c.Kills) })
	row("kill to next commit", func(c ConsumerProgress) string { return seconds(c.Back) })
	return g.lines()
}

func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", s)
}

// verdict shows the audit.
func (v *view) verdict(d *Verdict) {
	if v.cfg.JSON {
		v.object("verdict", d)
		return
	}
	if v.drawn > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	columns := 80
	if v.cfg.Terminal {
		columns, _ = v.cfg.Size()
	}
	t := v.paint
	w := func(format string, args ...any) { fmt.Fprintf(v.out, format+"\n", args...) }
	w("%s  PostgreSQL against what was sent, %.0f s, seed %d", t.bold("AUDIT"), d.Seconds, d.Seed)
	w("sent  %s messages, %s of them twice: %s records; amounts %s", comma(d.Messages), comma(d.Repeats), comma(d.Records), comma(d.Sum))
	w("")
	cs := make([]ConsumerProgress, len(d.Consumers))
	for i, f := range d.Consumers {
		cs[i] = f.ConsumerProgress
	}
	for _, l := range v.table(cs, d.Messages, columns, false) {
		w("%s", strings.TrimRight(l, " "))
	}
	w("")
	g := gridFor(columns)
	g.rows = [][]string{{"sum of the balances"}, {"  off by"}, {"  wrong accounts"}, {t.bold("verdict")}}
	for _, f := range d.Consumers {
		off, wrong, verdict := t.green("0"), t.green(fmt.Sprintf("0 of %d", accounts)), t.green("EXACT")
		if f.Sum != d.Sum {
			off = t.red(fmt.Sprintf("%s%s", sign(f.Sum-d.Sum), comma(abs(f.Sum-d.Sum))))
		}
		if f.Wrong > 0 {
			wrong = t.red(fmt.Sprintf("%d of %d", f.Wrong, accounts))
		}
		if !f.Exact {
			verdict = t.red("WRONG")
		}
		for i, cell := range []string{comma(f.Sum), off, wrong, verdict} {
			g.rows[i] = append(g.rows[i], cell)
		}
	}
	for _, l := range g.lines() {
		w("%s", strings.TrimRight(l, " "))
	}
	w("")
	e := d.Equation
	mark := t.green("holds")
	if !e.Holds {
		mark = t.red("does not hold")
	}
	w("semel's own accounts: the equation %s", mark)
	of := func(o inbox.Outcome) string { return comma(e.Outcomes[o.String()]) + " " + o.String() }
	w("  %s settled = %s + %s", comma(e.Settled), of(inbox.Applied), of(inbox.DuplicateID))
	w("    + %s + %s + %s + %s", of(inbox.Stale), of(inbox.Superseded), of(inbox.Dead), of(inbox.Skipped))
	w("  %s records in the topic, %d of them above the watermarks", comma(d.Records), e.Behind)
	if r := d.Consumers[0].Redelivered; r > 0 {
		w("  besides, %s that Kafka would have delivered again: the watermark knew them", comma(r))
	}
	w("")
	if d.Exact {
		w("%s", t.green("Every message took effect once in semel's table."))
		return
	}
	w("%s", t.red("Not every message took effect once in semel's table: this is a bug of semel's."))
	w("Please report it with seed %d.", d.Seed)
}

func sign(n int64) string {
	if n < 0 {
		return "-"
	}
	return "+"
}

func abs(n int64) int64 { return max(n, -n) }

func comma(n int64) string { return humanize.Comma(n) }

// bar is a stretch of n characters, filled by a part of 1.
func bar(part float64, n int) string {
	n = max(n, 0)
	full := min(max(int(part*float64(n)), 0), n)
	return strings.Repeat("█", full) + strings.Repeat("░", n-full)
}

// grid sets rows of cells, the first of each to the left.
type grid struct {
	label, width int
	head         []string
	rows         [][]string
}

func gridFor(columns int) grid {
	const label = 25
	return grid{label: label, width: min(max((columns-1-label)/len(kinds), 11), 20)}
}

func (g grid) lines() []string {
	var lines []string
	if len(g.head) > 0 {
		lines = append(lines, g.line(append([]string{""}, g.head...)))
	}
	for _, r := range g.rows {
		lines = append(lines, g.line(r))
	}
	return lines
}

func (g grid) line(cells []string) string {
	var b strings.Builder
	b.WriteString(cells[0] + strings.Repeat(" ", max(0, g.label-wide(cells[0]))))
	for _, c := range cells[1:] {
		b.WriteString(strings.Repeat(" ", max(1, g.width-wide(c))) + c)
	}
	return b.String()
}

// paint colours text for a terminal, or leaves it.
type paint bool

func (p paint) in(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p paint) bold(s string) string  { return p.in("1", s) }
func (p paint) dim(s string) string   { return p.in("2", s) }
func (p paint) red(s string) string   { return p.in("31", s) }
func (p paint) green(s string) string { return p.in("32", s) }
func (p paint) cyan(s string) string  { return p.in("36", s) }

// wide is how many columns a text takes that has colours, and no wide characters.
func wide(s string) int {
	n := 0
	for len(s) > 0 {
		if c := colourAt(s); c > 0 {
			s = s[c:]
			continue
		}
		_, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		n++
	}
	return n
}

// cut shortens such a text to n columns; colours stay, so that they end.
func cut(s string, n int) string {
	var b strings.Builder
	for len(s) > 0 {
		size := colourAt(s)
		if size == 0 {
			_, size = utf8.DecodeRuneInString(s)
			if n--; n < 0 {
				s = s[size:]
				continue
			}
		}
		b.WriteString(s[:size])
		s = s[size:]
	}
	return b.String()
}

// colourAt is the length of the colour sequence that s begins with, or 0.
func colourAt(s string) int {
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	return strings.IndexByte(s, 'm') + 1
}
