"""The commands of the program: they read arguments, call the library and print the result."""
