package filesystem

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

// watchLimit is how many watches there may be at once.
const watchLimit = 256

// watches are those that exist now.
type watches struct {
	mu     sync.Mutex
	all    map[*watch]struct{}
	polled map[string]*watch
}

func newWatches() *watches {
	return &watches{all: map[*watch]struct{}{}, polled: map[string]*watch{}}
}

// WatchDir streams the changes of a directory until the caller leaves.
func (s *Service) WatchDir(ctx context.Context, req *connect.Request[pb.WatchDirRequest], stream *connect.ServerStream[pb.WatchDirResponse]) error {
	w, err := s.watch(req.Header(), req.Msg)
	if err != nil {
		return err
	}
	defer s.watches.remove(w)
	started := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	if err := stream.Send(started); err != nil {
		return err
	}
	ping := pingInterval(req.Header())
	silence := time.NewTimer(ping)
	defer silence.Stop()
	for {
		select {
		case <-w.queue.ready:
			events, lost := w.queue.take()
			for _, event := range events {
				if err := stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: event}}); err != nil {
					return err
				}
			}
			if lost > 0 {
				return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d events of %s were lost, they came faster than they were read; list the directory and watch again", lost, w.root))
			}
		case <-silence.C:
			alive := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}}
			if err := stream.Send(alive); err != nil {
				return err
			}
		case <-w.done:
			return connect.NewError(connect.CodeUnavailable, fmt.Errorf("the watch of %s has ended", w.root))
		case <-ctx.Done():
			return ctx.Err()
		}
		silence.Reset(ping)
	}
}

// CreateWatcher begins to gather the changes of a directory.
func (s *Service) CreateWatcher(_ context.Context, req *connect.Request[pb.CreateWatcherRequest]) (*connect.Response[pb.CreateWatcherResponse], error) {
	w, err := s.watch(req.Header(), req.Msg)
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	s.watches.mu.Lock()
	s.watches.polled[id] = w
	s.watches.mu.Unlock()
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents takes the changes gathered since the last call. Beyond
// queueLimit the later ones are lost.
func (s *Service) GetWatcherEvents(_ context.Context, req *connect.Request[pb.GetWatcherEventsRequest]) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.watches.find(req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	events, lost := w.queue.take()
	if lost > 0 {
		s.opts.Log.Warn("events of a watched directory were lost, they were not fetched", "path", w.root, "lost", lost)
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher ends the gathering.
func (s *Service) RemoveWatcher(_ context.Context, req *connect.Request[pb.RemoveWatcherRequest]) (*connect.Response[pb.RemoveWatcherResponse], error) {
	w, err := s.watches.find(req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	s.watches.remove(w)
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}

// watchRequest is what WatchDirRequest and CreateWatcherRequest have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

func (s *Service) watch(h http.Header, req watchRequest) (*watch, error) {
	path, _, err := s.resolve(h, req.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, rpcError("watch", path, err)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", path))
	}
	if !req.GetAllowNetworkMounts() && onNetwork(path) {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s lies on a network mount, where changes made elsewhere are not seen; set allow_network_mounts to watch it nevertheless", path))
	}
	w := newWatch(path, req.GetRecursive(), s.opts.Log)
	if req.GetIncludeEntry() {
		w.accounts = s.opts.Identity.Accounts()
	}
	if err := s.watches.add(w); err != nil {
		return nil, err
	}
	if err := w.start(); err != nil {
		s.watches.remove(w)
		return nil, rpcError("watch", path, err)
	}
	return w, nil
}

func (s *watches) add(w *watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= watchLimit {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d directories are watched already, which is the limit; remove some watchers", watchLimit))
	}
	s.all[w] = struct{}{}
	return nil
}

func (s *watches) find(id string) (*watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.polled[id]
	if !ok {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %q not found", id))
	}
	return w, nil
}

func (s *watches) remove(w *watch) {
	s.mu.Lock()
	delete(s.all, w)
	for id, other := range s.polled {
		if other == w {
			delete(s.polled, id)
		}
	}
	s.mu.Unlock()
	w.close()
}

func (s *watches) close() {
	s.mu.Lock()
	all := s.all
	s.all, s.polled = map[*watch]struct{}{}, map[string]*watch{}
	s.mu.Unlock()
	for w := range all {
		w.close()
	}
}

// networkTypes are the file system types (statfs(2)) whose files others change:
// NFS, CIFS, SMB2, SMB, FUSE, 9P.
var networkTypes = map[int64]bool{
	0x6969: true, 0xff534d42: true, 0xfe534d42: true, 0x517b: true, 0x65735546: true, 0x01021997: true,
}

func onNetwork(path string) bool {
	var stat unix.Statfs_t
	err := unix.Statfs(path, &stat)
	return err == nil && networkTypes[int64(stat.Type)]
}

// defaultPing is E2B's interval of keepalives, for a caller that asks for none.
const defaultPing = 90 * time.Second

func pingInterval(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds < 1 || seconds > 24*3600 {
		return defaultPing
	}
	return time.Duration(seconds) * time.Second
}
