package sim

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// dice is a stream of random numbers that depends only on the seed and the stream's name (SplitMix64,
// https://prng.di.unimi.it/splitmix64.c). Each decision has its own stream. If a fault is left out of a schedule, the
// other decisions therefore stay the same.
type dice struct{ state uint64 }

// dice returns the stream for a name. Only the seed, the name and the numbers determine the stream.
func (w *World) dice(name string, numbers ...uint64) *dice {
	d := w.roll(name, numbers...)
	return &d
}

func (w *World) roll(name string, numbers ...uint64) dice {
	state := mix(w.opts.Seed ^ hashText(name))
	for _, n := range numbers {
		state = mix(state ^ n)
	}
	return dice{state}
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// hashText returns the 64-bit FNV-1a hash of s.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

func (d *dice) Uint64() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// IntN returns a number in [0, n).
func (d *dice) IntN(n int) int {
	high, _ := bits.Mul64(d.Uint64(), uint64(n))
	return int(high)
}

// Float64 returns a number in [0, 1).
func (d *dice) Float64() float64 { return float64(d.Uint64()>>11) / (1 << 53) }

func (d *dice) chance(p float64) bool { return d.Float64() < p }

// between returns a duration in [low, high).
func (d *dice) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	n, _ := bits.Mul64(d.Uint64(), uint64(high-low))
	return low + time.Duration(n)
}

// Read implements io.Reader.
func (d *dice) Read(p []byte) (int, error) {
	var raw [8]byte
	for n := 0; n < len(p); n += 8 {
		binary.LittleEndian.PutUint64(raw[:], d.Uint64())
		copy(p[n:], raw[:])
	}
	return len(p), nil
}
