"""The daemon of a host: launches servers, proves their configuration, drives the load, keeps a journal."""
