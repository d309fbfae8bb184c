"""The engine room: compiles blocks and steps their instances. It knows WebAssembly and nothing of files or models."""
