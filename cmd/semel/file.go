package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
	"github.com/spf13/pflag"
)

// fileFlags say which file a command reads, and what stands above it.
type fileFlags struct {
	brokers, database string
	config            string // where FILE is no argument
}

func (f *fileFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.brokers, "brokers", "", "instead of kafka.brokers: addresses, comma-separated")
	flags.StringVar(&f.database, "database", "", "instead of database: a `URL`")
}

// addConfig is for commands whose arguments are something else than the file.
func (f *fileFlags) addConfig(flags *pflag.FlagSet) {
	flags.StringVar(&f.config, "config", "", "the `FILE` (default semel.yaml, or SEMEL_CONFIG)")
	f.add(flags)
}

// path is the file's: what was said, else SEMEL_CONFIG, else semel.yaml.
func (f *fileFlags) path(args []string) string {
	said := f.config
	if len(args) > 0 {
		said = args[0]
	}
	return cmp.Or(said, os.Getenv("SEMEL_CONFIG"), "semel.yaml")
}

func (f *fileFlags) load(args []string) (*config.File, error) {
	var above []config.Setting
	if f.brokers != "" {
		above = append(above, config.WithBrokers(f.brokers))
	}
	if f.database != "" {
		above = append(above, config.WithDatabase(f.database))
	}
	return loadFile(f.path(args), above...)
}

func loadFile(path string, above ...config.Setting) (*config.File, error) {
	file, err := config.Load(path, above...)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, noFile(path)
	case err != nil:
		return nil, usage(err, "")
	}
	return file, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func noFile(path string) error {
	return usage(fmt.Errorf("%s: there is no such file", path), "name it, or set SEMEL_CONFIG")
}

// route looks a route up, with the nearest name in the hint.
func route(f *config.File, name string) (config.Route, error) {
	r, err := daemon.Route(f, name)
	return r, failed(err)
}

// failed gives an error of the daemon its exit code and hint.
func failed(err error) error {
	var unknown *daemon.UnknownRouteError
	var start *daemon.StartError
	var mistake *config.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &mistake): // in what the file names
		return usage(mistake, mistake.Hint)
	case errors.As(err, &unknown):
		return usage(unknown, didYouMean("", unknown.Name, unknown.Have, "its routes: "+strings.Join(unknown.Have, ", ")))
	case errors.Is(err, daemon.ErrBadURL) && errors.As(err, &start):
		return usage(start, start.Hint)
	case errors.As(err, &start):
		return stuck(start, start.Hint)
	}
	return err
}
