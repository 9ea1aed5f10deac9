"""The package SGLang scans for model classes."""
