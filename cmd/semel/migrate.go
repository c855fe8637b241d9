package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/semelhq/semel/internal/daemon"
	"github.com/semelhq/semel/postgres"
	"github.com/spf13/cobra"
)

// migrate makes or upgrades Semel's own tables.
type migrate struct {
	*app
	file        fileFlags
	print       bool
	grant       string
	newIdentity bool
}

func (a *app) migrateCommand() *cobra.Command {
	m := &migrate{app: a}
	cmd := &cobra.Command{
		Use:     "migrate [FILE]",
		GroupID: groupAct,
		Short:   "make or upgrade Semel's own tables",
		Long: `Makes Semel's own tables, or upgrades them, in one transaction, and registers
the consumers of the file, so that no run needs more than to read and write.`,
		Example: `  semel migrate
  semel migrate --print --grant app | psql     # by somebody else, for the role app
  semel migrate --new-identity                 # in a copy of a database`,
		Args: upTo(1),
		RunE: run(m),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&m.print, "print", false, "print the SQL for an empty database, and do nothing")
	f.StringVar(&m.grant, "grant", "", "give the `ROLE` what running routes needs")
	f.BoolVar(&m.newIdentity, "new-identity", false, "give a copied database an identity of its own: it must not take the original's acks for its own")
	m.file.add(f)
	return cmd
}

// Run migrates.
func (m *migrate) Run(ctx context.Context, args []string) error {
	file, err := m.file.load(args)
	if err != nil {
		return err
	}
	schema := file.Database.Schema
	if m.print {
		fmt.Fprint(m.out, postgres.MigrationSQL(schema))
		if m.grant != "" {
			fmt.Fprint(m.out, postgres.GrantSQL(schema, m.grant))
		}
		return nil
	}
	done, err := daemon.Migrate(ctx, file, daemon.MigrateConfig{Grant: m.grant, NewIdentity: m.newIdentity})
	var tables *postgres.SchemaError
	switch {
	case errors.As(err, &tables):
		return stuck(tables, tables.Hint())
	case err != nil:
		return failed(err)
	}
	switch {
	case done.From == 0:
		m.talk("schema %s: tables of version %d made", schema, done.To)
	case done.From < done.To:
		m.talk("schema %s: version %d upgraded to %d", schema, done.From, done.To)
	default:
		m.talk("schema %s: version %d, nothing to do", schema, done.To)
	}
	if m.grant != "" {
		m.talk("role %s may run routes", m.grant)
	}
	fmt.Fprintln(m.out, done.Database)
	return nil
}
