package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

// listLimit is how many entries one listing may have.
const listLimit = 100_000

// ListDir describes what a directory holds, down to a depth. The directory may
// be a link; links in it are not followed.
func (s *Service) ListDir(ctx context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	path, _, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, rpcError("list", path, err)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", path))
	}
	res := &pb.ListDirResponse{}
	if err := s.list(ctx, res, path, max(req.Msg.GetDepth(), 1)); err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

func (s *Service) list(ctx context.Context, res *pb.ListDirResponse, dir string, depth uint32) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	children, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone while we listed
	}
	if err != nil {
		return rpcError("list", dir, err)
	}
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		entry, err := Entry(path, s.opts.Identity.Accounts())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return rpcError("stat", path, err)
		}
		if len(res.Entries) == listLimit {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("there are more than %d entries; list a smaller directory or depth", listLimit))
		}
		res.Entries = append(res.Entries, entry)
		if child.IsDir() && depth > 1 {
			if err := s.list(ctx, res, path, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}
