// Empty: with it the compiler takes declarations of functions that are linked by name.
