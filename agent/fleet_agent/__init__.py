"""The daemon of a host: launches servers, proves their configuration, drives load, journals events."""
