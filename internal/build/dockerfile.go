package build

import "errors"

// DockerfileOptions say how a Dockerfile is read.
type DockerfileOptions struct{}

// ParseDockerfile makes a plan of a Dockerfile.
func ParseDockerfile(text string, o DockerfileOptions) (Plan, error) {
	return Plan{}, errors.New("reading Dockerfiles is not there yet")
}
