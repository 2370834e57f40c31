"""The program that people run: model, data, loop, launcher and command line. Imports `replica`; never grpc."""
