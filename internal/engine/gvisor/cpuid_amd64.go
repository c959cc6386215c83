package gvisor

import (
	"sync"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/cpuid"
)

// In a virtual machine each CPUID instruction leaves the guest, which takes 1 to
// 150 µs. gVisor asks some 400 times when a sentry starts, twice because it
// executes itself anew on the way, and nearly always what it has asked before. In
// a nested virtual machine that is a third of the time a sandbox takes to start.
// So the program asks first, each question once, and leaves the answers where
// gVisor would put them.

// quickCPUID answers each question to the processor once.
type quickCPUID struct {
	native  cpuid.Native
	answers map[cpuid.In]cpuid.Out
}

// Leaves of CPUID.
const (
	xsaveLeaf = 0xd
	// firstComponent is the first subleaf of xsaveLeaf that tells of one component of
	// the extended state. The two before say which there are; the others are zero
	// (Intel SDM vol. 2A, CPUID, leaf 0DH).
	firstComponent = 2
)

func (q *quickCPUID) Query(in cpuid.In) cpuid.Out {
	if answer, ok := q.answers[in]; ok {
		return answer
	}
	var answer cpuid.Out
	if in.Eax != xsaveLeaf || in.Ecx < firstComponent || q.hasComponent(in.Ecx) {
		answer = q.native.Query(in)
	}
	q.answers[in] = answer
	return answer
}

func (q *quickCPUID) hasComponent(n uint32) bool {
	user := q.Query(cpuid.In{Eax: xsaveLeaf})
	supervisor := q.Query(cpuid.In{Eax: xsaveLeaf, Ecx: 1})
	low, high := user.Eax|supervisor.Ecx, user.Edx|supervisor.Edx
	if n < 32 {
		return low&(1<<n) != 0
	}
	return n < 64 && high&(1<<(n-32)) != 0
}

func quickFeatures() cpuid.FeatureSet {
	return cpuid.FeatureSet{Function: &quickCPUID{answers: map[cpuid.In]cpuid.Out{}}}.Fixed()
}

// prepareCPUID does what cpuid.Initialize would, and keeps it from doing so.
func prepareCPUID() {
	initOnce.Do(func() {
		hostFeatureSet = quickFeatures()
		readMaxCPUFreq()
		initHWCap()
	})
}

//go:linkname hostFeatureSet gvisor.dev/gvisor/pkg/cpuid.hostFeatureSet
var hostFeatureSet cpuid.FeatureSet

//go:linkname initOnce gvisor.dev/gvisor/pkg/cpuid.initOnce
var initOnce sync.Once

//go:linkname readMaxCPUFreq gvisor.dev/gvisor/pkg/cpuid.readMaxCPUFreq
func readMaxCPUFreq()

//go:linkname initHWCap gvisor.dev/gvisor/pkg/cpuid.initHWCap
func initHWCap()
