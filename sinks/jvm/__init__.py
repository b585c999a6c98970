"""What a Spark driver's JVM loads beside Spark: our own jar, and the jars of others."""
