// Package image owns recipes, the building of root images and the folder they
// are kept in. It knows nothing of sandboxes, the engine or the network inside.
//
// A root image is one EROFS file, not compressed, named after the recipe and
// the hash of what shapes it, and never changed once it has its name. Equal
// inputs give equal bytes as far as the package sources allow: every time in an
// image is [Epoch], byte code is compiled against it, caches and logs are left
// out.
//
// The recipes come with the program and are trusted: their commands run as root
// on this machine, in mount, process, IPC and host name namespaces of their own
// and chrooted, with the machine's network. That is tidiness, not isolation. What a user
// of the API asks to be built must never come here; such builds run in sandboxes.
package image
