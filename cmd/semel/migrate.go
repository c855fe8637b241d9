package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/semelhq/semel/internal/config"
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
the consumers of the file, so that no run needs more than to read and write.
Programs of their own have no file: without one, --database or DATABASE_URL says
where the tables go.`,
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
	file, err := m.load(args)
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
	fmt.Fprintln(m.out, "identity", done.Database)
	return nil
}

// load is the file's database; of a program without a file, the one that was
// named. A file that was named has to be there.
func (m *migrate) load(args []string) (*config.File, error) {
	path := m.file.path(args)
	if len(args) > 0 || os.Getenv("SEMEL_CONFIG") != "" || exists(path) {
		return m.file.load(args)
	}
	url := cmp.Or(m.file.database, os.Getenv("DATABASE_URL"))
	if url == "" && !m.print {
		return nil, usage(fmt.Errorf("%s: there is no such file, and neither --database nor DATABASE_URL is set", path), "name one of them")
	}
	return config.WithoutFile(url), nil
}
