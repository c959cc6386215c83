package image

import (
	"context"
	"errors"
)

// Commit makes the image name (without .erofs) out of the image base, a file name in
// the folder, and upper, an archive of what a sandbox wrote over it (see
// engine.Instance.WriteDisk). When an image of that name is there, it is returned as
// it is: the name must say what is in it.
func (b Builder) Commit(ctx context.Context, base, upper, name string) (Image, error) {
	return Image{}, errors.New("committing images is not there yet")
}

// List lists the images in the folder, by name.
func (b Builder) List() ([]Image, error) {
	return nil, errors.New("listing images is not there yet")
}

// Remove removes an image by its file name, with the log of its build. Whether
// somebody uses it is the caller's to know.
func (b Builder) Remove(name string) error {
	return errors.New("removing images is not there yet")
}
