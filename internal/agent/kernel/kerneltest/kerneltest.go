// Package kerneltest gives tests an interpreter for kernels.
package kerneltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Python is an interpreter with IPython, ipykernel, numpy, pandas, matplotlib,
// seaborn and Pillow, and with E2B's e2b_charts, which our charts are compared with:
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
	packages := []string{"ipython", "matplotlib-inline", "ipykernel", "numpy", "pandas", "matplotlib", "seaborn", "pillow", "e2b-charts"}
	if exec.Command(python, "-c", "import IPython, matplotlib_inline, ipykernel, numpy, pandas, matplotlib, seaborn, PIL, e2b_charts").Run() == nil {
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

// Node is the machine's node, and the folder for its NODE_PATH with what
// transpiles TypeScript: $TOMBOLO_TEST_NODE_PATH, or one in the checkout made once.
// The error says what the machine lacks.
var Node = sync.OnceValues(func() (Interpreter, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return Interpreter{}, fmt.Errorf("this machine has no node: %w", err)
	}
	if path := os.Getenv("TOMBOLO_TEST_NODE_PATH"); path != "" {
		return Interpreter{node, path}, nil
	}
	top, err := checkout()
	if err != nil {
		return Interpreter{}, err
	}
	root := filepath.Join(top, ".tombolo", "kernel-node")
	modules := filepath.Join(root, "node_modules")
	if _, err := os.Stat(filepath.Join(modules, ".package-lock.json")); err == nil {
		return Interpreter{node, modules}, nil
	}
	// As in templates/code-interpreter-v1.
	install := []string{"install", "--silent", "--no-audit", "--no-fund", "--prefix", root, "oxc-transform@0.158.0", "typescript@5.9.3"}
	if out, err := exec.Command("npm", install...).CombinedOutput(); err != nil {
		return Interpreter{}, fmt.Errorf("npm %v: %w: %s", install, err, out)
	}
	return Interpreter{node, modules}, nil
})

// An Interpreter is a program and where it finds its packages.
type Interpreter struct{ Path, Packages string }

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
