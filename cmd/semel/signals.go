package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// stop says how a command is asked to end: soft ends with the first SIGINT or
// SIGTERM (finish what is in flight), hard with the second (drop it).
type stop struct {
	soft, hard context.Context
	signals    [2]atomic.Int32
}

func (s *stop) first() int  { return int(s.signals[0].Load()) }
func (s *stop) second() int { return int(s.signals[1].Load()) }

// abortPatience is how long a command may take to end after the second signal.
const abortPatience = 5 * time.Second

func catchSignals() (*stop, func()) {
	soft, cancelSoft := context.WithCancel(context.Background())
	hard, cancelHard := context.WithCancel(context.Background())
	s := &stop{soft: soft, hard: hard}
	heard := make(chan os.Signal, 4)
	signal.Notify(heard, syscall.SIGINT, syscall.SIGTERM)
	quit := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case sig := <-heard:
				num := int32(sig.(syscall.Signal))
				switch n {
				case 0:
					s.signals[0].Store(num)
					cancelSoft()
				case 1:
					s.signals[1].Store(num)
					cancelHard()
					time.AfterFunc(abortPatience, func() { os.Exit(128 + int(num)) })
				default:
					os.Exit(128 + int(num))
				}
			}
		}
	}()
	return s, func() {
		signal.Stop(heard)
		close(quit)
		cancelSoft()
		cancelHard()
	}
}
