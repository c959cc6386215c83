package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// builderVersion is part of every hash. Raise it when the same recipe makes
// another tree than before.
const builderVersion = 3

// Hash tells one content of the recipe, and of those it is made from, from
// every other: the root image and the settings. 64 hex digits.
func (r Recipe) Hash() string {
	return digest(struct {
		Image                       string
		User, Workdir, Start, Ready string
		Env                         map[string]string
		Kernels                     []string
		CPUs                        int
		Memory, Disk                Size
	}{r.ImageHash(), r.User, r.Workdir, r.Start, r.Ready, r.Env, r.Kernels, r.CPUs, r.Memory, r.Disk})
}

// ImageHash is Hash over what makes the root image only: a change of memory or
// of the start command needs no new image. The versions of packages are not in
// it, nor is the host's CA bundle, which a sandbox is given when it starts.
func (r Recipe) ImageHash() string {
	var parent string
	if r.parent != nil {
		parent = r.parent.ImageHash()
	}
	return digest(struct {
		Builder                 int
		Parent, Debian          string
		Packages, Pip, Npm, Run []string
		Files                   []file
	}{builderVersion, parent, r.Debian, r.Packages, r.Pip, r.Npm, r.Run, r.files})
}

func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode a recipe: %v", err)) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
