package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// fetchesAtOnce is how many layers are downloaded at a time; a download that gives
// nothing for idleTime, or less than paceBytes in paceTime, is begun again, up to
// fetchTries times in all: others may wait for the image, or for the turn of the build.
const (
	fetchesAtOnce = 3
	fetchTries    = 3
	idleTime      = time.Minute
	paceTime      = 2 * time.Minute
	paceBytes     = 1200 << 10 // 10 KiB a second
)

// pace tells whether a download is worth waiting for.
type pace struct {
	since time.Time
	had   int64 // bytes, then
}

func (p *pace) check(now time.Time, had int64) error {
	if now.Sub(p.since) < paceTime {
		return nil
	}
	if had-p.had < paceBytes {
		return fmt.Errorf("the registry sent %d KB in %s; it is too slow", (had-p.had)>>10, paceTime)
	}
	*p = pace{now, had}
	return nil
}

// fetching downloads the layers of an image ahead of their use.
type fetching struct {
	layers []layer
	done   []chan struct{} // closed when the layer is there, or is not to be
	files  []*os.File
	errs   []error
	group  sync.WaitGroup
}

// fetch begins to download those layers that are elsewhere into the folder. It ends
// with ctx; wait then, before the folder goes.
func fetch(ctx context.Context, w *work, layers []layer, tell *teller) *fetching {
	f := &fetching{
		layers: layers, done: make([]chan struct{}, len(layers)),
		files: make([]*os.File, len(layers)), errs: make([]error, len(layers)),
	}
	next := make(chan int, len(layers))
	tell.expect(len(layers), 0)
	for i, l := range layers {
		f.done[i] = make(chan struct{})
		if !l.remote {
			close(f.done[i])
			continue
		}
		// Made here, for the folder's list of files is not for several goroutines.
		if f.files[i], f.errs[i] = w.create(fmt.Sprintf("layer-%d", i)); f.errs[i] != nil {
			close(f.done[i])
			continue
		}
		tell.expect(len(layers), l.size)
		next <- i
	}
	close(next)
	for range fetchesAtOnce {
		f.group.Go(func() {
			for i := range next {
				f.errs[i] = fetchLayer(ctx, w.room, layers[i], f.files[i], tell)
				close(f.done[i])
			}
		})
	}
	return f
}

func (f *fetching) wait() { f.group.Wait() }

// open waits for a layer and opens it. It can be opened once.
func (f *fetching) open(ctx context.Context, i int) (io.ReadCloser, error) {
	<-f.done[i]
	switch {
	case f.errs[i] != nil:
		return nil, f.errs[i]
	case !f.layers[i].remote:
		return f.layers[i].open(ctx)
	}
	file := f.files[i]
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return &spent{file}, nil
}

// spent is a downloaded layer, which is of no use after it was read.
type spent struct{ *os.File }

func (s *spent) Close() error { return s.Truncate(0) }

func fetchLayer(ctx context.Context, room func(int64) error, l layer, to *os.File, tell *teller) error {
	var err error
	for try := range fetchTries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if try > 0 {
			tell.say("downloading " + l.digest + " again: " + err.Error())
		}
		var had int64
		if had, err = fetchOnce(ctx, room, l, to, tell); err == nil {
			return nil
		}
		tell.bytes(-had)
		var refused *RefusedError
		var full *SpaceError
		if errors.As(err, &refused) || errors.As(err, &full) {
			break
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("download it: %w", err)
}

func fetchOnce(ctx context.Context, room func(int64) error, l layer, to *os.File, tell *teller) (had int64, err error) {
	if err := errors.Join(to.Truncate(0), func() error { _, err := to.Seek(0, io.SeekStart); return err }()); err != nil {
		return 0, err
	}
	blob, err := l.open(ctx)
	if err != nil {
		return 0, err
	}
	defer blob.Close()
	stop := context.AfterFunc(ctx, func() { blob.Close() })
	defer stop()
	idle := time.AfterFunc(idleTime, func() { blob.Close() })
	defer idle.Stop()
	buf, pace := make([]byte, 256<<10), pace{since: time.Now()}
	for {
		n, err := blob.Read(buf)
		idle.Reset(idleTime)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return had, err
			}
			had += int64(n)
			tell.bytes(int64(n))
			if err := errors.Join(pace.check(time.Now(), had), room(0)); err != nil && had < l.size {
				return had, err
			}
		}
		if err == io.EOF {
			return had, nil // its hash was right, too
		}
		if err != nil {
			return had, err
		}
	}
}

// teller tells the progress of one import.
type teller struct {
	mu   sync.Mutex
	to   func(Progress)
	last Progress
	at   time.Time
}

// tellEvery is how often bytes are told.
const tellEvery = time.Second

func newTeller(to func(Progress)) *teller {
	if to == nil {
		to = func(Progress) {}
	}
	return &teller{to: to}
}

func (t *teller) say(text string) { t.change(true, func(p *Progress) { p.Text = text }) }

func (t *teller) layer(i int, text string) {
	t.change(true, func(p *Progress) { p.Layer, p.Text = i, text })
}

func (t *teller) expect(layers int, bytes int64) {
	t.change(false, func(p *Progress) { p.Layers, p.TotalBytes = layers, p.TotalBytes+bytes })
}

func (t *teller) bytes(n int64) {
	t.change(false, func(p *Progress) {
		p.Bytes += n
		p.Text = "downloading"
	})
}

func (t *teller) change(always bool, change func(*Progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.last)
	if !always && (time.Since(t.at) < tellEvery || t.last.Bytes == 0) && t.last.Bytes != t.last.TotalBytes {
		return
	}
	t.at = time.Now()
	t.to(t.last)
}
