package image

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// MissingToolsError says which programs a build needs that the machine lacks.
type MissingToolsError struct {
	Tools []string // named like the Debian packages that have them
}

func (e *MissingToolsError) Error() string {
	return fmt.Sprintf("building a template needs %s; install with: apt-get install -y %s",
		strings.Join(e.Tools, " and "), strings.Join(e.Tools, " "))
}

func checkTools(r Recipe) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("building template %s needs root: its files belong to several users", r.Name)
	}
	if r.Debian == "" {
		return nil
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return &MissingToolsError{Tools: []string{"mmdebstrap"}}
	}
	return nil
}
