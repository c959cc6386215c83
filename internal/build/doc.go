// Package build makes templates from plans: it boots a sandbox from an image,
// runs steps in it, keeps layers of what they wrote for the next build, and turns
// the result into an image and a template. It owns the folder builds/ of the data
// folder (uploads, layers, logs) and the life of builds. It knows the sandbox
// manager, images and the store, and no dialect.
package build
