// Go allows functions without a body only beside a file like this.
