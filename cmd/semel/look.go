package main

import (
	"context"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/daemon"
)

// look opens what commands need that look at routes from outside.
func (a *app) look(ctx context.Context, flags *fileFlags, args []string) (*daemon.Viewer, *config.File, error) {
	log, err := a.logger()
	if err != nil {
		return nil, nil, err
	}
	file, err := flags.load(args)
	if err != nil {
		return nil, nil, err
	}
	v, err := daemon.NewViewer(ctx, file, log)
	if err != nil {
		return nil, nil, failed(err)
	}
	return v, file, nil
}
