// Package rpc holds the Go code generated from the files in /proto; nothing in
// it is written by hand. It needs protoc, protoc-gen-go and
// protoc-gen-connect-go in the PATH to be generated again.
package rpc

//go:generate sh -c "cd ../../../proto && protoc -I. --go_out=.. --go_opt=module=github.com/tombolo-dev/tombolo --connect-go_out=.. --connect-go_opt=module=github.com/tombolo-dev/tombolo,simple=false process/process.proto filesystem/filesystem.proto"
