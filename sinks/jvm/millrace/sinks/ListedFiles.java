package millrace.sinks;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.SnapshotDescriptor;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import org.apache.spark.sql.delta.util.DeltaFileOperations;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Files of a Delta table, listed one by one.
 *
 * <p>Delta makes a query of such a list, twice for each plan that reads it, to exclude files of
 * other partitions. That takes as long as all other planning.
 */
public final class ListedFiles extends TahoeBatchFileIndex {
  private ListedFiles(
      SparkSession session, DeltaLog log, SnapshotDescriptor snapshot, Seq<AddFile> files) {
    super(session, "batch", files, log, log.dataPath(), snapshot, false);
  }

  /** Return the rows of some files of a version. */
  public static Dataset<Row> rows(
      SparkSession session, DeltaLog log, SnapshotDescriptor snapshot, Seq<AddFile> files) {
    Dataset<Row> rows =
        (Dataset<Row>) log.createDataFrame(snapshot, files, false, Option.empty());
    if (!snapshot.metadata().partitionColumns().isEmpty()
        || !(rows.queryExecution().analyzed() instanceof LogicalRelation scan)
        || !(scan.relation() instanceof HadoopFsRelation all)) {
      return rows;
    }
    HadoopFsRelation listed =
        all.copy(
            new ListedFiles(session, log, snapshot, files),
            all.partitionSchema(),
            all.dataSchema(),
            all.bucketSpec(),
            all.fileFormat(),
            all.options(),
            all.sparkSession());
    return Dataset.ofRows(
        session,
        scan.copy(listed, scan.output(), scan.catalogTable(), scan.isStreaming(), scan.stream()));
  }

  /** Return a version's files as another table names them: with absolute paths, without row ids. */
  public static Seq<AddFile> absolute(DeltaLog log, Snapshot snapshot) throws IOException {
    Path folder = log.dataPath().getFileSystem(log.newDeltaHadoopConf()).makeQualified(log.dataPath());
    List<AddFile> made = new ArrayList<>();
    for (AddFile file : CollectionConverters.asJava(of(snapshot))) {
      DeletionVectorDescriptor vector = file.deletionVector();
      made.add(
          file.copy(
              DeltaFileOperations.absolutePath(folder.toString(), file.path()).toUri().toString(),
              file.partitionValues(),
              file.size(),
              file.modificationTime(),
              true,
              file.stats(),
              file.tags(),
              vector == null ? null : vector.copyWithAbsolutePath(folder),
              Option.empty(),
              Option.empty(),
              file.clusteringProvider(),
              Option.empty(),
              Option.empty()));
    }
    return CollectionConverters.asScala(made).toSeq();
  }

  /**
   * Return a version's files; a small table's checksum has them, so no job is needed.
   *
   * <p>https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
   */
  public static Seq<AddFile> of(Snapshot snapshot) {
    if (snapshot.checksumOpt().isDefined()
        && snapshot.checksumOpt().get().allFiles().isDefined()) {
      return snapshot.checksumOpt().get().allFiles().get();
    }
    return CollectionConverters.asScala(snapshot.allFiles().collectAsList()).toSeq();
  }

  @Override
  public Seq<AddFile> matchingFiles(Seq<Expression> partitions, Seq<Expression> data) {
    return addFiles();
  }
}
