package gvisor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/cpuid"
)

func TestQuickCPUIDSaysWhatTheProcessorSays(t *testing.T) {
	want := cpuid.FeatureSet{Function: &cpuid.Native{}}.Fixed().Function.(cpuid.Static)
	got := quickFeatures().Function.(cpuid.Static)
	for in, answer := range want {
		// The first word of this answer holds the id of the processor that is asked.
		const features = 1
		if in.Eax == features {
			answer.Ebx, got[in] = 0, cpuid.Out{Eax: got[in].Eax, Ecx: got[in].Ecx, Edx: got[in].Edx}
		}
		require.Equal(t, answer, got[in], "leaf %#x/%d", in.Eax, in.Ecx)
	}
	require.Len(t, got, len(want))
}
