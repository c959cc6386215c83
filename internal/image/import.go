package image

import (
	"context"
	"errors"
)

// Source is where an image of somebody else's comes from: exactly one of
// Reference and Path.
type Source struct {
	// Reference names an image in a registry, as Docker's pull takes it:
	// "python:3.13", "ghcr.io/owner/name@sha256:…". Without a registry it is Docker Hub's.
	Reference string
	// Login is for the registry of Reference; nil is anonymous.
	Login *Login
	// Path is a docker-archive or an OCI layout on this machine: a tar file or a folder.
	Path string
}

// Login is a user and password, or token, of a registry.
type Login struct {
	User, Password string
}

// Imported is what an import made.
type Imported struct {
	Image
	// Digest is the image's at its source, "sha256:…": that of its manifest for
	// linux/amd64; for a docker-archive, which has none, that of its config.
	Digest string
	Config Config
}

// Config is what an image says about the programs to run in it.
type Config struct {
	Env          []string // NAME=value
	User         string   // name or number, with a group after a ":"; empty is root
	WorkingDir   string
	Entrypoint   []string
	Cmd          []string
	Shell        []string
	OnBuild      []string
	ExposedPorts []string // such as 80/tcp, sorted
	Labels       map[string]string
}

// Progress is how far an import or a commit has come.
type Progress struct {
	// Text is a line for people: what happens now.
	Text string
	// Layer of Layers is downloaded or applied; 0 before that is known.
	Layer, Layers int
	// Bytes of TotalBytes have been downloaded; 0 where nothing is.
	Bytes, TotalBytes int64
}

// Import makes a root image out of an image in a registry or on this machine, adds
// what a sandbox needs (see provision) and puts it into the folder, named after the
// digest. An image that is there is not made again. progress, which may be nil, is
// called from one goroutine at a time. When ctx ends, nothing is left behind.
func (b Builder) Import(ctx context.Context, source Source, progress func(Progress)) (Imported, error) {
	return Imported{}, errors.New("importing images is not there yet")
}
