// Package filesystem serves filesystem.Filesystem: it describes, lists, makes,
// moves, removes and watches files. The agent acts as root, as E2B's does; the
// account of a request says where relative paths begin and who owns what is
// made. The content of files belongs to package files.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem/filesystemconnect"
)

// Options are what the service works with.
type Options struct {
	Identity *identity.State
	Log      *slog.Logger
}

// Service implements filesystem.Filesystem.
type Service struct {
	opts    Options
	watches *watches
}

// New returns a service without watches.
func New(opts Options) *Service {
	return &Service{opts: opts, watches: newWatches()}
}

// Handler returns the path prefix of the service and its handler.
func (s *Service) Handler(options ...connect.HandlerOption) (string, http.Handler) {
	return filesystemconnect.NewFilesystemHandler(s, options...)
}

// Close ends every watch.
func (s *Service) Close() { s.watches.close() }

// Stat describes what is at a path.
func (s *Service) Stat(_ context.Context, req *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	path, _, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := s.entry(path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StatResponse{Entry: entry}), nil
}

// MakeDir makes a directory and its missing parents.
func (s *Service) MakeDir(_ context.Context, req *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	path, who, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
	case err == nil:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", path))
	}
	if err := MakeDirs(path, who); err != nil {
		return nil, rpcError("make directory", path, err)
	}
	entry, err := s.entry(path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: entry}), nil
}

// Move renames a file or directory.
func (s *Service) Move(_ context.Context, req *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	source, who, err := s.resolveNamed(req.Header(), req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	destination, _, err := s.resolveNamed(req.Header(), req.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(source); err != nil {
		return nil, rpcError("move", source, err)
	}
	if err := MakeDirs(filepath.Dir(destination), who); err != nil {
		return nil, rpcError("make directory", filepath.Dir(destination), err)
	}
	if err := os.Rename(source, destination); err != nil {
		return nil, rpcError("move "+source+" to", destination, err)
	}
	entry, err := s.entry(destination)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: entry}), nil
}

// Remove deletes a file, or a directory with all it holds.
func (s *Service) Remove(_ context.Context, req *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	path, _, err := s.resolveNamed(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the root directory cannot be removed"))
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, rpcError("remove", path, err)
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}

// resolve finds who a request acts as and what path it means.
func (s *Service) resolve(h http.Header, path string) (string, account.Account, error) {
	who, err := s.opts.Identity.RequestAccount(h)
	if err != nil {
		return "", who, connect.NewError(connect.CodeUnauthenticated, err)
	}
	resolved, err := s.opts.Identity.Resolve(path, who)
	if err != nil {
		return "", who, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return resolved, who, nil
}

// resolveNamed is resolve for what changes the file itself: there a path that
// was left out must not mean the working directory.
func (s *Service) resolveNamed(h http.Header, path string) (string, account.Account, error) {
	if path == "" {
		return "", account.Account{}, connect.NewError(connect.CodeInvalidArgument, errors.New("the path is empty"))
	}
	return s.resolve(h, path)
}

func (s *Service) entry(path string) (*pb.EntryInfo, error) {
	entry, err := Entry(path, s.opts.Identity.Accounts())
	if err != nil {
		return nil, rpcError("stat", path, err)
	}
	return entry, nil
}

// rpcError gives an error of the file system its code.
func rpcError(what, path string, err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrPermission):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		code = connect.CodeInvalidArgument
	case errors.Is(err, fs.ErrExist): // rename onto a directory that holds something
		code = connect.CodeAlreadyExists
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMFILE),
		errors.Is(err, errTooLarge):
		code = connect.CodeResourceExhausted
	case errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EROFS):
		code = connect.CodeFailedPrecondition
	}
	var cause *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &cause):
		err = cause.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return connect.NewError(code, fmt.Errorf("%s %s: %w", what, path, err))
}
