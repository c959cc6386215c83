package event

// NewRefusalsWith is NewRefusals with another recorder and clock.
var NewRefusalsWith = newRefusals
