package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An interrupt comes at any instruction of the kernel's program; none may
// split a frame or lose the count of acknowledgements.
func TestInterruptsNeverBreakTheKernel(t *testing.T) {
	b := start(t)
	b.run("kept = 'kept'; import os, sys, asyncio, traceback")
	codes := []string{
		"while True: print('on'); print('on', file=sys.stderr)",
		"while True: print('on'); os.write(1, b'low\\n')",
		"while True: print('on'); display('shown'); os.write(2, b'low\\n')",
		"async def spin():\n    while True:\n        print('on'); await asyncio.sleep(0)\nawait asyncio.gather(spin(), spin())",
		"while True:\n    try: print('on'); 1/0\n    except ZeroDivisionError: traceback.print_exc()",
	}
	for i := range 25 {
		code := codes[i%len(codes)]
		b.disconnect(code)
		r := b.run("print('x'); kept")
		require.NotNil(t, r.main(), "after %s: %v", code, r.lines)
		require.Equal(t, "kept", r.main()["text"], code)
		require.Equal(t, "x\n", r.text("stdout"), "after %s", code)
	}
}
