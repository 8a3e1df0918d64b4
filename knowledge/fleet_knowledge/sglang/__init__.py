"""What is known of SGLang by version: arguments, speculation rules, what it changes by itself."""
