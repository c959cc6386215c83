package policy

// Has tells whether the tables have a say in actions of a kind.
func (s Set) Has(kind Kind) bool {
	for _, table := range s {
		if table.kinds[kind] != nil {
			return true
		}
	}
	return false
}
