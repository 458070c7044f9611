package hold

// Tests of package cacheaside need these, nothing else.

// Len is the number of keys on hold.
func (h *Hold) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.keys)
}

// StopRenewal has the keys not renewed any more, except by Check.
func (h *Hold) StopRenewal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
}
