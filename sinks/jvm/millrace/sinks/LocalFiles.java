package millrace.sinks;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, without child processes that make and rename files.
 *
 * <p>If its native library is missing, Hadoop starts {@code chmod} for each file that it makes, and
 * {@code readlink} for each that it renames. That is about eight per commit to a Delta table.
 */
public final class LocalFiles extends RawLocalFileSystem {
  private static final String MODE = "unix:mode";
  private static final int SET_UID_AND_GID = 06000;

  /** As {@code chmod} does: a folder keeps the setgid bit, which gives its files its group. */
  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    java.nio.file.Path file = pathToFile(path).toPath();
    int kept = Files.isDirectory(file) ? (int) Files.getAttribute(file, MODE) & SET_UID_AND_GID : 0;
    Files.setAttribute(file, MODE, permission.toShort() | kept);
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
    return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
  }

  /** With checksums: {@code fs.file.impl}. */
  public static final class FileSystemWithChecksums extends LocalFileSystem {
    public FileSystemWithChecksums() {
      super(new LocalFiles());
    }
  }

  /** With checksums: {@code fs.AbstractFileSystem.file.impl}. */
  public static final class FsWithChecksums extends ChecksumFs {
    /** Hadoop calls the constructor with these arguments. */
    public FsWithChecksums(URI uri, Configuration configuration)
        throws IOException, URISyntaxException {
      super(new RawFs(uri, configuration));
    }
  }

  private static final class RawFs extends DelegateToFileSystem {
    RawFs(URI uri, Configuration configuration) throws IOException, URISyntaxException {
      super(uri, new LocalFiles(), configuration, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      return true; // like Hadoop's own: colons are allowed here
    }
  }
}
