package memory

// Wait waits until what was Set has been applied or dropped.
func (t *Tier) Wait() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.cache.Wait()
	}
}
