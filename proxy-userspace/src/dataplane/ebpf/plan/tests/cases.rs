//! Single cases, each of which says what it is about.
