package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/postgres"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// dead is what the commands about dead letters share: which ones.
type dead struct {
	*app
	file      fileFlags
	route     string
	class     string
	since     string
	olderThan string
	// everywhere: of consumers that aren't in the file too
	everywhere bool
	redrives   bool // which needs the letters' routes
	limit      int
	all        bool
	wait       bool
	here       bool
	outOfOrder bool
	closed     bool
	payload    bool
	json       bool
}

func (a *app) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dead",
		Aliases: []string{"dlq"},
		GroupID: groupAct,
		Short:   "list, show, redrive and discard dead letters",
		Long: `A dead letter is a message that was settled without effect: it is kept with
its origin, its bytes, and why.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.deadList(), a.deadShow(), a.deadDiscard(), a.deadRedrive())
	return cmd
}

func (d *dead) choose(f *pflag.FlagSet) {
	f.StringVar(&d.route, "route", "", "of this route `NAME` alone")
	f.StringVar(&d.class, "class", "", "of this class alone: decode, missing-id, collision, value, constraint, handler or crash")
	f.StringVar(&d.since, "since", "", "buried since a `TIME`, or so long ago at most (2h)")
	f.StringVar(&d.olderThan, "older-than", "", "buried at least so `LONG` ago (7d)")
	d.reach(f)
}

func (d *dead) reach(f *pflag.FlagSet) {
	f.BoolVar(&d.everywhere, "everywhere", false, "of every consumer in the database, not of the file's alone")
}

func (a *app) deadList() *cobra.Command {
	d := &dead{app: a}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "a line for each dead letter, oldest first",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.each(cmd.Context(), nil, false, d.printLine)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	d.choose(f)
	f.IntVar(&d.limit, "limit", 0, "the newest `N`, newest first; 0: all")
	f.BoolVar(&d.closed, "closed", false, "those redriven or discarded too")
	f.BoolVar(&d.json, "json", false, "as JSON, an object a line")
	d.file.addConfig(f)
	return cmd
}

func (a *app) deadShow() *cobra.Command {
	d := &dead{app: a, closed: true}
	cmd := &cobra.Command{
		Use:   "show NUMBER…",
		Short: "all that is kept of dead letters",
		Args:  atLeast(1, "NUMBER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.each(cmd.Context(), args, d.payload, d.printAll)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&d.payload, "payload", false, "key, headers and value too")
	d.reach(f)
	f.BoolVar(&d.json, "json", false, "as JSON, an object a line; bytes as base64")
	d.file.addConfig(f)
	return cmd
}

func (a *app) deadDiscard() *cobra.Command {
	d := &dead{app: a}
	cmd := &cobra.Command{
		Use:   "discard [NUMBER…]",
		Short: "close dead letters without an effect",
		Long: `Closes dead letters: they stay in the table as discarded and are no longer
counted. Name numbers, or --all together with what narrows it. Those of consumers
that no route of the file has are left alone without --everywhere.`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.discard(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	d.choose(f)
	f.BoolVar(&d.all, "all", false, "all that the other flags leave")
	d.file.addConfig(f)
	return cmd
}

// each hands over the dead letters that were chosen.
func (d *dead) each(ctx context.Context, numbers []string, payload bool, print func(postgres.DeadRow) error) error {
	if err := d.known(); err != nil {
		return err
	}
	v, file, err := d.look(ctx, &d.file, nil)
	if err != nil {
		return err
	}
	defer v.Close()
	q, err := d.query(file, numbers)
	if err == nil {
		err = d.ours(ctx, v.Memory(), q)
	}
	if err != nil {
		return err
	}
	q.Payload = payload
	rows, err := v.Memory().DeadLetters(ctx, q)
	if err != nil {
		return stuck(err, "")
	}
	for _, r := range rows {
		if err := print(r); err != nil {
			return err
		}
	}
	if missing := len(q.Numbers) - len(rows); len(q.Numbers) > 0 && missing > 0 {
		return no(fmt.Errorf("%s not found", plural(int64(missing), "number")), "semel dead list shows them")
	}
	return nil
}

func (d *dead) discard(ctx context.Context, numbers []string) error {
	v, _, q, err := d.some(ctx, numbers)
	if err != nil {
		return err
	}
	defer v.Close()
	n, err := v.Memory().Discard(ctx, q)
	if err != nil {
		return stuck(err, "")
	}
	fmt.Fprintln(d.out, "discarded "+plural(n, "dead letter"))
	return d.missed(numbers, n)
}

// some opens what is needed to change letters, which have to be named or narrowed:
// nobody means all of them by saying nothing.
func (d *dead) some(ctx context.Context, numbers []string) (v *daemon.Viewer, file *config.File, q postgres.DeadFilter, err error) {
	if (len(numbers) > 0) == d.all {
		return nil, nil, q, usage(errors.New("which ones?"), "numbers, or --all (with --route, --class, --older-than)")
	}
	if err := d.known(); err != nil {
		return nil, nil, q, err
	}
	if v, file, err = d.look(ctx, &d.file, nil); err != nil {
		return nil, nil, q, err
	}
	if q, err = d.query(file, numbers); err == nil {
		err = d.ours(ctx, v.Memory(), q)
	}
	if err != nil {
		v.Close()
		return nil, nil, q, err
	}
	return v, file, q, nil
}

// ours refuses numbers that are there, of consumers that weren't asked for: a number
// counts in the whole database, which may have other files' letters too.
func (d *dead) ours(ctx context.Context, m *postgres.Status, q postgres.DeadFilter) error {
	if len(q.Numbers) == 0 || q.Consumers == nil {
		return nil
	}
	rows, err := m.DeadLetters(ctx, postgres.DeadFilter{Numbers: q.Numbers, Closed: true})
	if err != nil {
		return stuck(err, "")
	}
	for _, r := range rows {
		switch {
		case slices.Contains(q.Consumers, r.Consumer):
		case d.route != "":
			return no(fmt.Errorf("dead letter %d is of consumer %s, not of route %s", r.Number, r.Consumer, d.route), "")
		default:
			return d.foreign(r)
		}
	}
	return nil
}

// foreign is why a letter isn't taken whose consumer the file doesn't have.
func (d *dead) foreign(r postgres.DeadRow) error {
	hint := "--everywhere takes it all the same"
	if d.redrives {
		hint = "with the file that has its route"
	}
	return no(fmt.Errorf("dead letter %d is of consumer %s, which no route of the file has", r.Number, r.Consumer), hint)
}

func consumers(file *config.File) []string {
	names := []string{}
	for _, r := range file.Routes {
		names = append(names, r.Consumer)
	}
	return names
}

// missed says that some of the numbers were not there to be changed.
func (d *dead) missed(numbers []string, changed int64) error {
	missing := int64(len(numbers)) - changed
	if len(numbers) == 0 || missing <= 0 {
		return nil
	}
	return no(fmt.Errorf("%s not found or closed already", plural(missing, "number")), "semel dead list shows those that are open")
}

// known refuses a class that no dead letter has.
func (d *dead) known() error {
	classes := []string{
		string(inbox.DeadDecode), string(inbox.DeadMissingID), string(inbox.DeadCollision), string(inbox.DeadValue),
		string(inbox.DeadConstraint), string(inbox.DeadHandler), string(inbox.DeadCrash),
	}
	if d.class == "" || slices.Contains(classes, d.class) {
		return nil
	}
	return usage(fmt.Errorf("--class: there is no %q", d.class), didYouMean("", d.class, classes, "there are "+strings.Join(classes, ", ")))
}

// query reads flags and numbers.
func (d *dead) query(file *config.File, numbers []string) (q postgres.DeadFilter, err error) {
	q = postgres.DeadFilter{Limit: d.limit, Closed: d.closed}
	if d.class != "" {
		q.Classes = []inbox.DeadClass{inbox.DeadClass(d.class)}
	}
	if d.route != "" {
		r, err := route(file, d.route)
		if err != nil {
			return q, err
		}
		q.Consumers = []string{r.Consumer}
	} else if !d.everywhere {
		q.Consumers = consumers(file)
	}
	for _, s := range numbers {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return q, usage(fmt.Errorf("%q is no number of a dead letter", s), "semel dead list shows them")
		}
		q.Numbers = append(q.Numbers, n)
	}
	if q.Since, err = moment("--since", d.since); err != nil {
		return q, err
	}
	if d.olderThan != "" {
		long, err := model.ParseDuration(d.olderThan)
		if err != nil {
			return q, usage(fmt.Errorf("--older-than: %q is no duration", d.olderThan), "like 7d, 1h30m")
		}
		q.Before = time.Now().Add(-time.Duration(long))
	}
	return q, nil
}

// moment is a time, or so long ago.
func moment(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	ago, err := model.ParseDuration(s)
	if err != nil {
		return time.Time{}, usage(fmt.Errorf("%s: %q is neither a time nor a duration", flag, s), "like 2026-01-02T03:04:05Z, or 2h")
	}
	return time.Now().Add(-time.Duration(ago)), nil
}

// letter is a dead letter as JSON; bytes are base64.
type letter struct {
	Number      int64          `json:"number"`
	Consumer    string         `json:"consumer"`
	Topic       string         `json:"topic"`
	Partition   int32          `json:"partition"`
	Offset      int64          `json:"offset"`
	MessageTime *time.Time     `json:"message_time,omitempty"`
	MessageID   string         `json:"message_id,omitempty"`
	Class       string         `json:"class"`
	SQLState    string         `json:"sqlstate,omitempty"`
	Error       string         `json:"error"`
	Attempts    int            `json:"attempts"`
	At          time.Time      `json:"at"`
	State       string         `json:"state"`
	Outcome     string         `json:"outcome,omitempty"`
	Size        int64          `json:"size"`
	Key         []byte         `json:"key,omitempty"`
	Value       []byte         `json:"value,omitempty"`
	Headers     []semel.Header `json:"headers,omitempty"`
}

func letterOf(r postgres.DeadRow) letter {
	l := letter{
		Number: r.Number, Consumer: r.Consumer, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset,
		MessageID: r.MessageID, Class: string(r.Class), Size: r.Size, SQLState: r.SQLState, Error: r.Error, Attempts: r.Attempts,
		At: r.Buried.UTC(), State: r.State, Outcome: r.Outcome, Key: r.Key, Value: r.Value, Headers: r.Headers,
	}
	if !r.Timestamp.IsZero() {
		t := r.Timestamp.UTC()
		l.MessageTime = &t
	}
	return l
}

func (d *dead) printLine(r postgres.DeadRow) error {
	if d.json {
		return json.NewEncoder(d.out).Encode(letterOf(r))
	}
	id := r.MessageID
	if id == "" {
		id = "-"
	}
	state := ""
	if r.State != "buried" {
		state = " (" + stateOf(r) + ")"
	}
	_, err := fmt.Fprintf(d.out, "%d  %s  %s  %s  %s  %s  %s%s\n", r.Number, r.Buried.UTC().Format(time.RFC3339), r.Consumer, r.Position(), r.Class, id, r.Error, state)
	return err
}

func (d *dead) printAll(r postgres.DeadRow) error {
	if d.json {
		return json.NewEncoder(d.out).Encode(letterOf(r))
	}
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(d.out, "%-10s %s\n", name, value)
		}
	}
	line("number", strconv.FormatInt(r.Number, 10))
	line("consumer", r.Consumer)
	line("position", r.Position().String())
	if !r.Timestamp.IsZero() {
		line("sent", r.Timestamp.UTC().Format(time.RFC3339Nano))
	}
	line("message ID", r.MessageID)
	line("class", string(r.Class))
	line("sqlstate", r.SQLState)
	line("error", r.Error)
	line("attempts", strconv.Itoa(r.Attempts))
	line("buried", r.Buried.UTC().Format(time.RFC3339Nano))
	line("state", stateOf(r))
	if d.payload {
		line("key", text(r.Key))
		for _, h := range r.Headers {
			line("header", h.Name+" = "+text(h.Value))
		}
		line("value", text(r.Value))
	}
	fmt.Fprintln(d.out)
	return nil
}

// stateOf is a letter's state, and what a redrive came to.
func stateOf(r postgres.DeadRow) string {
	if r.Outcome == "" {
		return r.State
	}
	return r.State + ": " + r.Outcome
}

// text shows bytes as they are if a terminal may have them, else quoted.
func text(b []byte) string {
	if b == nil {
		return "null"
	}
	s := string(b)
	if !utf8.ValidString(s) || hasControl(s) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

func hasControl(s string) bool {
	for _, r := range s {
		if r < ' ' && r != '\t' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return true
		}
	}
	return false
}
