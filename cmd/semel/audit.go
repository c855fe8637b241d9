package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/cobra"
)

// audit proves the accounts.
type audit struct {
	*app
	file fileFlags
	deep bool
	json bool
}

func (a *app) auditCommand() *cobra.Command {
	c := &audit{app: a}
	cmd := &cobra.Command{
		Use:     "audit [FILE]",
		GroupID: groupLook,
		Short:   "prove that every message was settled once",
		Long: `Proves the accounts of each partition: settled is the sum of the outcomes, in
number and checksum; every offset from the start to the watermark is settled, a
hole or lost; and the watermark lies within the broker's log. --deep reads the
log again and compares its messages with what was settled.

Exit code 1 if anything differs.`,
		Args: upTo(1),
		RunE: run(c),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&c.deep, "deep", false, "read the topics again and compare number and checksum")
	f.BoolVar(&c.json, "json", false, "as JSON, an object a line")
	c.file.add(f)
	return cmd
}

// Run prints a line for each partition.
func (c *audit) Run(ctx context.Context, args []string) error {
	v, file, err := c.look(ctx, &c.file, args)
	if err != nil {
		return err
	}
	defer v.Close()
	as, err := v.Audit(ctx, file.Routes, c.deep)
	if err != nil {
		return failed(err)
	}
	wrong, settled := 0, int64(0)
	for _, a := range as {
		settled += a.Settled
		if len(a.Wrong) > 0 {
			wrong++
		}
		if c.json {
			if err := json.NewEncoder(c.out).Encode(a); err != nil {
				return err
			}
			continue
		}
		c.print(a)
	}
	if wrong > 0 {
		return no(errors.New(plural(int64(wrong), "partition")+" with a difference"), "")
	}
	c.talk("%s in %s: every one settled once", plural(settled, "message"), plural(int64(len(as)), "partition"))
	return nil
}

func (c *audit) print(a daemon.Audited) {
	verdict := "ok"
	if len(a.Wrong) > 0 {
		verdict = "WRONG"
	}
	var parts []string
	for _, o := range inbox.Outcomes {
		if n := a.Outcomes[o.String()]; n > 0 {
			parts = append(parts, thousands(n)+" "+o.String())
		}
	}
	sum := "nothing"
	if len(parts) > 0 {
		sum = strings.Join(parts, " + ")
	}
	fmt.Fprintf(c.out, "%s %s/%d: %s settled = %s; offsets %d to %d", a.Route, a.Topic, a.Partition, thousands(a.Settled), sum, a.Start, a.Next)
	if a.Holes > 0 {
		fmt.Fprintf(c.out, ", %s", plural(a.Holes, "hole"))
	}
	if a.Lost > 0 {
		fmt.Fprintf(c.out, ", %s lost", thousands(a.Lost))
	}
	if a.Read != nil {
		fmt.Fprintf(c.out, "; read again: %s", thousands(*a.Read))
	}
	fmt.Fprintf(c.out, ": %s\n", verdict)
	for _, w := range a.Wrong {
		fmt.Fprintf(c.out, "  wrong: %s\n", w)
	}
	for _, u := range a.Unknown {
		fmt.Fprintf(c.out, "  not proved: %s\n", u)
	}
}
