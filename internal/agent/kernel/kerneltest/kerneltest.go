// Package kerneltest gives tests an interpreter for kernels.
package kerneltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Python is an interpreter with IPython, numpy, pandas, matplotlib, seaborn and
// Pillow, and with E2B's e2b_charts, which our charts are compared with:
// $TOMBOLO_TEST_PYTHON, or a virtual environment in the checkout made once.
var Python = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TOMBOLO_TEST_PYTHON"); path != "" {
		return path, nil
	}
	top, err := checkout()
	if err != nil {
		return "", err
	}
	root := filepath.Join(top, ".tombolo", "kernel-venv")
	python := filepath.Join(root, "bin", "python3")
	packages := []string{"ipython", "matplotlib-inline", "numpy", "pandas", "matplotlib", "seaborn", "pillow", "e2b-charts"}
	if exec.Command(python, "-c", "import IPython, matplotlib_inline, numpy, pandas, matplotlib, seaborn, PIL, e2b_charts").Run() == nil {
		return python, nil
	}
	if out, err := exec.Command("python3", "-m", "venv", root).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make %s: %w: %s", root, err, out)
	}
	install := append([]string{"-m", "pip", "install", "--quiet"}, packages...)
	if out, err := exec.Command(python, install...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("install %v: %w: %s", packages, err, out)
	}
	return python, nil
})

// checkout is the folder of the module that the test belongs to.
func checkout() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above the folder of the test")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
