package image

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// MissingToolsError says which programs a build needs that the machine lacks.
type MissingToolsError struct {
	Tools    []string
	Packages []string // the Debian packages that have them
}

func (e *MissingToolsError) Error() string {
	return fmt.Sprintf("building a template needs %s; install with: apt-get install -y %s",
		strings.Join(e.Tools, " and "), strings.Join(e.Packages, " "))
}

// CheckTools says what this machine lacks for building any template: nil or a
// *MissingToolsError.
func CheckTools() error { return checkTools(Recipe{Debian: "any"}) }

func checkTools(r Recipe) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("building template %s needs root: its files belong to several users", r.Name)
	}
	var needed [][2]string
	if r.Debian != "" {
		needed = append(needed, [2]string{"mmdebstrap", "mmdebstrap"})
	}
	var missing MissingToolsError
	for _, n := range needed {
		if _, err := exec.LookPath(n[0]); err != nil {
			missing.Tools = append(missing.Tools, n[0])
			missing.Packages = append(missing.Packages, n[1])
		}
	}
	if missing.Tools != nil {
		return &missing
	}
	return nil
}
